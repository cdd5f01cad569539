"""The records that are kept between requests."""
