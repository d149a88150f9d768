"""HTTP servers, their pages and clients."""
