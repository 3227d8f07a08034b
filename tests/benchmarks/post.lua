-- wrk script: POST one file again and again.
done = require("summary")

local file = assert(io.open(os.getenv("BODY_FILE"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = os.getenv("CONTENT_TYPE")
wrk.headers["Accept"] = os.getenv("CONTENT_TYPE")
wrk.headers["Inference-Header-Content-Length"] = os.getenv("JSON_BYTES") -- nil, so none, but for inferences
