<?php
// What Composer would write into vendor/.
require "GuzzleHttp/autoload.php";
spl_autoload_register(function (string $class): void {
    $file = __DIR__ . "/../lib/" . strtr(substr($class, strlen("OpenAPI\\Client\\")), "\\", "/") . ".php";
    if (str_starts_with($class, "OpenAPI\\Client\\") && file_exists($file)) {
        require $file;
    }
});
