-- Its error matches one of the patterns $1, in any case.
outcomes.error ilike any ($1::text[])
