// Package previews runs the calls of a preview.
package previews

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Func returns a function whose calls are in the report.
func Func(p *preview.Preview, controller string, call reconcile.Func[types.NamespacedName]) reconcile.Func[types.NamespacedName] {
	return func(ctx context.Context, key types.NamespacedName) (res reconcile.Result, err error) {
		ctx, end := p.Begin(ctx, controller, strings.TrimPrefix(key.String(), "/"))
		defer func() {
			if v := recover(); v != nil {
				end(fmt.Errorf("panic: %v", v))
				panic(v)
			}
			end(err)
		}()
		return call(ctx, key)
	}
}
