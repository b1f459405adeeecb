from django.db import models


class Product(models.Model):
    name = models.CharField(max_length=100, unique=True)
    stock = models.PositiveIntegerField()


class Order(models.Model):
    email = models.EmailField()
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    receipt_sent_at = models.DateTimeField(null=True)
