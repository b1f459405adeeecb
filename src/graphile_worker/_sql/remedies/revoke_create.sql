revoke create on schema :"place" from :"role";
