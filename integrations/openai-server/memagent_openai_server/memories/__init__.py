"""What is kept between requests."""
