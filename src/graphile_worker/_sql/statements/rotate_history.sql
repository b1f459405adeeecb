-- Change the ring of history slots from the slot $1 and starts $2 to the slot $3 and starts $4, and
-- empty the slots $5 unless one has rows after its time in $6. Returns whether that was possible.
select :ext_schema.rotate_history(
  seen_slot => $1::smallint,
  seen_starts => $2::text[]::timestamptz[],
  next_slot => $3::smallint,
  next_starts => $4::text[]::timestamptz[],
  emptied_slots => $5::int[],
  emptied_until => $6::text[]::timestamptz[]
);
