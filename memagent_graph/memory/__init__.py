"""Where memories live, and who else can use them."""
