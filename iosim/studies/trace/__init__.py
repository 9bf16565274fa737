"""What a traced replay shows: views of its records as data, and the page that draws them."""
