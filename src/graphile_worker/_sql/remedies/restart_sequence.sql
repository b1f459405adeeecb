alter sequence :schema.:"sequence" restart with :'first';
