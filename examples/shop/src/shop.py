"""A shop that sells paint, in one colour at a time."""


def price(colour, litres):
    """The price of that many litres of a colour, in cents."""
    per_litre = {"red": 450, "blue": 420, "green": 480}
    return per_litre[colour] * litres


def label(colour, litres):
    """What is printed on the tin."""
    return f"{litres} l of the colour {colour}: {price(colour, litres) / 100:.2f}"
