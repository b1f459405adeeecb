create role :"role" login;
grant :"owner" to :"role";
