-- Take the rescue lock for this transaction, unless another one has it.
select turns.name
from :ext_schema.turns as turns
where turns.name = 'sweep'
for update skip locked;
