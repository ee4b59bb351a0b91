import unittest

import shop


class ShopTest(unittest.TestCase):
    def test_price(self):
        self.assertEqual(shop.price("blue", 3), 1260)

    def test_label(self):
        self.assertEqual(shop.label("red", 2), "2 l of the colour red: 9.00")


if __name__ == "__main__":
    unittest.main()
