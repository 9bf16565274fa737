"""A kernel's bytes in closed form as a person reads them: with numbers put in, the symbols named, beside the papers."""
