import json

from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from shop import orders
from shop.models import Order, Product


@csrf_exempt  # an API without cookies; not for forms
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    wanted = json.loads(request.body)
    product = get_object_or_404(Product, name=wanted["product"])
    try:
        order, job = orders.place_order(wanted["email"], product)
    except orders.SoldOut:
        return JsonResponse({"error": f"we have no {product.name} left"}, status=409)
    return JsonResponse({"order_id": order.id, "job_id": job.id}, status=202)


@require_GET
def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    order = get_object_or_404(Order, id=order_id)
    return JsonResponse({"receipt_sent_at": order.receipt_sent_at})
