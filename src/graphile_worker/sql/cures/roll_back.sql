rollback prepared :'name';
