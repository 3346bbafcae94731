"""The console: look into a cluster and change it, in a browser. A web application of its own, over the client's administration."""
