"""What dlschedd tells Prometheus: figures that only it knows, and a small HTTP server for them."""
