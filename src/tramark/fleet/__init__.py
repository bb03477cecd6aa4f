"""All clients' models at once: layout, region, fleet, aggregation, drift."""
