"use strict";

// Swagger UI has dark colours for a page of this class.
const dark = matchMedia("(prefers-color-scheme: dark)");
const adapt = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", adapt);
adapt();

// Swagger UI's own way of putting schemas in the place of references takes a second and more for a document of this
// size, whatever operation is opened, and a dispatch took seven: each of its examples costs a copy of the whole request,
// in which every operator's tensors are described anew. All our references are to this document, and no schema refers to
// itself, so little is needed.

const MANY = 10;

/** `part` of `document` with schemas for references, of which at most `most`, one in the other, are followed. */
function resolve(part, document, most = Infinity) {
  if (Array.isArray(part)) return part.map((each) => resolve(each, document, most));
  if (part === null || typeof part !== "object") return part;
  const { $ref, ...others } = part;
  if ($ref) {
    const path = $ref.split("/").slice(1);
    const named = { title: path.at(-1) };
    return most ? { ...named, ...resolve(find(path, document), document, most - 1), ...others } : { ...named, ...part };
  }
  // Of many choices each is shown with its own fields, and what those are made of by name: it is under Schemas.
  if (part.oneOf?.length > MANY) most = Math.min(most, 1);
  return Object.fromEntries(Object.entries(part).map(([name, each]) => [name, resolve(each, document, most)]));
}

function find(path, document) {
  return path.reduce((part, name) => part[name], document);
}

/** The component of request bodies, for which each schema is made a plain object once, not once for each example. */
function sparing(RequestBody, { React }) {
  return (props) => {
    props.requestBody?.get("content")?.forEach((content) => {
      const schema = content.get("schema");
      if (!schema || Object.hasOwn(schema, "toJS")) return;
      let plain;
      schema.toJS = () => (plain ??= Object.getPrototypeOf(schema).toJS.call(schema));
    });
    return React.createElement(RequestBody, props);
  };
}

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  plugins: [{
    fn: { resolveSubtree: async (document, path) => ({ spec: resolve(find(path, document), document), errors: [] }) },
    wrapComponents: { RequestBody: sparing },
  }],
});
