// What travels between the two languages, as TypeScript sees it; payloads.py is its twin.

export interface Line {
  product: string;
  amount: number;
}

/** For price_order, which Python runs. */
export interface Order {
  order: number;
  lines: Line[];
}

/** For send_invoice, which Node runs. */
export interface Invoice {
  order: number;
  total: string; // JSON has no exact decimals: money travels as text
  due: string; // and dates as ISO text
}

// With this, addJob and helpers.addJob refuse a payload that does not fit its task.
declare global {
  namespace GraphileWorker {
    interface Tasks {
      price_order: Order;
      send_invoice: Invoice;
    }
  }
}
