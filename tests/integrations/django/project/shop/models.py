from django.db import models


class Order(models.Model):
    email = models.CharField(max_length=100, default="ada@example.com")
    is_paid = models.BooleanField(default=False)
