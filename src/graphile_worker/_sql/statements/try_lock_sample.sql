-- Lock the sample $1 for this transaction, if the next one is due and no other transaction takes it.
select samples.name
from :ext_schema.samples as samples
where samples.name = $1::text
  and (
    samples.next_at <= pg_catalog.now()
    or samples.next_at > pg_catalog.now() + interval '2 minutes'
  )
for update skip locked;
