-- Can statements be sent, or has one failed in this transaction? Answers 1.
select $1::int;
