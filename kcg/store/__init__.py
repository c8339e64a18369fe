"""A store of results: the best verified schedules by region, values, target and toolchain: a folder, or on the Hub."""
