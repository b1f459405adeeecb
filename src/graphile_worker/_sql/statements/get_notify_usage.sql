-- Which part of the room for notifications is taken by those that somebody has not read.
select pg_catalog.pg_notification_queue_usage();
