grant :"owner" to :"role";
