select pg_notification_queue_usage() as used
