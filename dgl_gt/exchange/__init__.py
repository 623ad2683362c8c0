"""How rows travel between ranks: one strategy per file, all behind the protocol of :mod:`dgl_gt.exchange.view`."""
