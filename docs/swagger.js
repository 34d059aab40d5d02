/* Swagger UI on the description. */
SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "../openapi.json", // relative to the page, since a prefix may precede its path
  deepLinking: true,
  layout: "BaseLayout", // without a field for another description's address
  validatorUrl: null, // or a validator on the network would be asked
});
