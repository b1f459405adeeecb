create database :"database";
