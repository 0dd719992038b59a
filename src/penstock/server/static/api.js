// Shows the API: every operation with its fields and answers, to try out. The document is the server's own.
"use strict";

SwaggerUIBundle({
  url: document.body.dataset.base + "/v1/openapi.json",
  domNode: document.getElementById("api"),
  docExpansion: "list",
  deepLinking: true,
  displayOperationId: true,
  filter: true,
  validatorUrl: null,
});
