"""The explorer: a page that replays attention's launches in the browser, of a grid that it carries or of any problem
that a server on this machine works out."""
