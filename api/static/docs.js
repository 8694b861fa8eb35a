"use strict";

addEventListener("load", () => {
  SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    // It would ask a server of its maker's.
    validatorUrl: null,
  });
});
