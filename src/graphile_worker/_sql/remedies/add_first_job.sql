select :schema.add_job('send_email', '{"to": "ana@example.com"}');
