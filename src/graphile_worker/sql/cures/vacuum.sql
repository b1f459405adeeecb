vacuum (verbose) :schema.:"table";
