"""Who there is to serve: engines and their health, what their nodes hold, conversations, and who gets a request."""
