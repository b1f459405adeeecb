alter database :"database" reset default_transaction_read_only;
