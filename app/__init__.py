"""dmlserve: DirectML's operator contract as an HTTP microservice."""

__version__ = "0.1.0"
