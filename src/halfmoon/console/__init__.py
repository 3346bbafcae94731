"""Web console: shows a cluster and changes it, in a browser. A web application over the client's administration."""
