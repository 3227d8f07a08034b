"""Microsoft's DxDispatch models: JSON files of resources, dispatchables and commands."""
