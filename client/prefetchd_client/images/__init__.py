"""The package decodes pictures for torchvision's transforms: of a JPEG only what the crop needs, and resized once.

from prefetchd_client.images import Decode
dataset = ImageFolder(root, transform=Decode(transform), loader=str)
"""

from prefetchd_client.images.decode import Decode
from prefetchd_client.images.on_device import DecodeOnDevice, EncodedPictures, collate_encoded, encoded_picture

__all__ = ["Decode", "DecodeOnDevice", "EncodedPictures", "collate_encoded", "encoded_picture"]
