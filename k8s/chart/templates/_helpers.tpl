{{- define "fleet.image" -}}
{{- required "image.name is missing: name the image with Fleet, repository:tag or repository@sha256:digest" .Values.image.name -}}
{{- end }}

{{- define "fleet.labels" -}}
app.kubernetes.io/name: {{ .name }}
{{ if .part }}app.kubernetes.io/component: {{ .part }}
{{ end -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/part-of: fleet
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "fleet.namespaces" -}}
{{- range (.Values.watchNamespaces | default (list .Release.Namespace)) }}
- {{ . }}
{{- end }}
{{- end }}

{{- define "fleet.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* A container's image, login, home and the clusters' files; env and mounts: more of both. */}}
{{- define "fleet.container" -}}
{{- $values := .root.Values -}}
image: {{ .image | default (include "fleet.image" .root) | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
env:
  - {name: HOME, value: /var/lib/fleet}
  - {name: FLEET_HOME, value: /var/lib/fleet}
  - {name: FLEET_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.kafka.envFrom }}
envFrom:
{{- range . }}
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}
securityContext:
  {{- include "fleet.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: clusters, mountPath: /etc/fleet/clusters, readOnly: true}
  - {name: home, mountPath: /var/lib/fleet}
  - {name: tmp, mountPath: /tmp}
{{- with .mounts }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $name, $path := $values.kafka.mounts }}
  - {name: {{ include "fleet.secretVolume" $name }}, mountPath: {{ $path | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- /* A Secret's name may have dots and 253 characters, a volume's may not. */}}
{{- define "fleet.secretVolume" -}}
secret-{{ sha256sum . | trunc 12 }}
{{- end }}

{{- define "fleet.volumes" -}}
- {name: clusters, configMap: {name: {{ .root.Release.Name }}-clusters}}
- {name: home, {{ .home | default "emptyDir: {}" }}}
- {name: tmp, emptyDir: {}}
{{- range $name, $path := .root.Values.kafka.mounts }}
- {name: {{ include "fleet.secretVolume" $name }}, secret: {secretName: {{ $name | quote }}}}
{{- end }}
{{- end }}

{{- /* fleet.yaml of a cluster without fleets; its pods get the chart's account and `workers`. */}}
{{- define "fleet.clusterFile" -}}
{{- $workers := .root.Values.workers }}
{{- $runtime := dict "kind" "kubernetes" "service_account" (printf "%s-worker" .root.Release.Name) }}
{{- $_ := set $runtime "max_unavailable" (int $workers.maxUnavailable) }}
{{- $_ := set $runtime "spread" (ne $workers.spread "none") }}
{{- $_ := set $runtime "spread_required" (eq $workers.spread "required") }}
{{- if $workers.tolerationSeconds }}
{{- $tolerations := list }}
{{- range $taint := list "not-ready" "unreachable" }}
{{- $toleration := dict "key" (printf "node.kubernetes.io/%s" $taint) "operator" "Exists" "effect" "NoExecute" }}
{{- $tolerations = append $tolerations (set $toleration "tolerationSeconds" $workers.tolerationSeconds) }}
{{- end }}
{{- $_ := set $runtime "tolerations" $tolerations }}
{{- end }}
{{- $cluster := merge (dict "name" .name) (.file.cluster | default dict) }}
{{- $defaults := dict "defaults" (dict "runtime" $runtime) }}
{{- toYaml (mergeOverwrite $defaults (deepCopy .file) (dict "cluster" $cluster)) }}
{{- end }}

{{- define "fleet.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Where a part's pod runs: the same keys of every part. */}}
{{- define "fleet.placement" -}}
{{- range $key := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with index $ $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What a pod may reach, if the platform says so. */}}
{{- define "fleet.egress" -}}
{{- with .Values.networkPolicy.egress -}}
policyTypes: [Ingress, Egress]
egress:
  {{- toYaml . | nindent 2 }}
{{- else -}}
policyTypes: [Ingress]
{{- end }}
{{- end }}
