from django.db import models


class Order(models.Model):
    paid = models.BooleanField(default=False)
