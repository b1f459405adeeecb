// Written by `graphile-worker types --typescript`. Change the Python tasks instead.

/** An invoice, which Node sends. */
export type Invoice = {
  order: number;
  total: string | number;
  due: string;
};

export type Line = {
  product: string;
  amount: number;
};

/** An order, which Python prices. */
export type Order = {
  order: number;
  lines: Line[];
};

declare global {
  namespace GraphileWorker {
    interface Tasks {
      /** Price an order and enqueue its invoice. */
      price_order: Order;
      /** Send an invoice. Node runs this task. */
      send_invoice: Invoice;
    }
  }
}

export {};
