-- Return the used share of the notification queue.
select pg_catalog.pg_notification_queue_usage();
