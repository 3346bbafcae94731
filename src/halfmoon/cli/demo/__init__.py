"""`halfmoon demo`: the main job on one screen, of real processes: an order service, a consumer, a broker that is killed."""
