package consistency

import (
	"bytes"
	"encoding/binary"

	"k8s.io/apimachinery/pkg/types"
)

// protobufMagic precedes every protobuf message of Kubernetes.
const protobufMagic = "k8s\x00"

// The numbers of the fields, from the generated.proto files of apimachinery.
const (
	unknownTypeMeta, unknownRaw, unknownEncoding = 1, 2, 3 // runtime.Unknown
	typeAPIVersion, typeKind                     = 1, 2    // runtime.TypeMeta
	kindMetadata, statusDetails, detailsUID      = 1, 5, 6 // any kind; Status; StatusDetails

	metaUID, metaResourceVersion, metaDeletionTimestamp, metaGrace, metaFinalizers = 5, 6, 9, 10, 14
)

func readProtobuf(body []byte) (answer, error) {
	var a answer
	envelope, ok := bytes.CutPrefix(body, []byte(protobufMagic))
	if !ok {
		return a, errContentType
	}
	var raw []byte
	found, status := false, false
	err := protobufFields(envelope, func(number uint64, _ uint64, data []byte) error {
		switch number {
		case unknownTypeMeta:
			var version, kind []byte
			err := protobufFields(data, func(number, _ uint64, data []byte) error {
				switch number {
				case typeAPIVersion:
					version = data
				case typeKind:
					kind = data
				}
				return nil
			})
			status = string(version) == "v1" && string(kind) == "Status"
			return err
		case unknownRaw:
			raw, found = data, true
		case unknownEncoding:
			if len(data) > 0 {
				return errContentType
			}
		}
		return nil
	})
	if err != nil {
		return a, err
	}
	if !found {
		return a, errCut
	}
	return a, protobufFields(raw, func(number, _ uint64, data []byte) error {
		switch {
		case number == kindMetadata && !status:
			return protobufFields(data, func(number, value uint64, data []byte) error {
				switch number {
				case metaUID:
					a.uid = types.UID(data)
				case metaResourceVersion:
					a.rv = string(data)
				case metaDeletionTimestamp:
					a.deleting = true
				case metaGrace:
					a.grace = value != 0
				case metaFinalizers:
					a.finalizers = true
				}
				return nil
			})
		case number == statusDetails && status:
			return protobufFields(data, func(number, _ uint64, data []byte) error {
				if number == detailsUID {
					a.deleted = types.UID(data)
				}
				return nil
			})
		}
		return nil
	})
}

// protobufFields calls field for every field of a message: with the value of a
// number, or the data of anything with a length.
func protobufFields(message []byte, field func(number, value uint64, data []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errCut
		}
		message = message[n:]
		var value uint64
		var data []byte
		size := 0
		switch tag & 7 {
		case 0:
			if value, size = binary.Uvarint(message); size <= 0 {
				return errCut
			}
		case 1:
			size = 8
		case 2:
			length, n := binary.Uvarint(message)
			if n <= 0 || length > uint64(len(message)-n) {
				return errCut
			}
			data = message[n : n+int(length)]
			size = n + int(length)
		case 5:
			size = 4
		default:
			return errSyntax
		}
		if size > len(message) {
			return errCut
		}
		message = message[size:]
		if err := field(tag>>3, value, data); err != nil {
			return err
		}
	}
	return nil
}
