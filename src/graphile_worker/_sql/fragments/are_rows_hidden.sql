-- Whether row level security hides all rows of table "relations" from this role. An owner sees all
-- rows unless row security is forced. A policy may show them to other roles.
pg_catalog.row_security_active(relations.oid)
    and not exists (
      select
      from pg_catalog.pg_policy as policies
      cross join pg_catalog.unnest(policies.polroles) as roles (id)
      where policies.polrelid = relations.oid
        and case roles.id when 0::oid then true else pg_catalog.pg_has_role(roles.id, 'usage') end
    )
